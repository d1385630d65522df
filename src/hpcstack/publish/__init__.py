"""Makes the releases that users load: modulefiles, wrappers, a real load and unload, the gate with
its report, the catalogue, gc.

In: an `Artifact` and a report. Out: a release in the module tree.
"""
