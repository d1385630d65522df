"""Images as registries and archives hold them: references, manifests, layers and how layers merge. Pure."""
