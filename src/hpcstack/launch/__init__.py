"""Launch: one job step in an image, with Slurm's own words for its resources, and a reason for each word of it."""

from hpcstack.launch.image import image_of, image_to_launch
from hpcstack.launch.plan import OWN_FAILURE, Extras, Plan, plan
from hpcstack.launch.resources import Resources, Share, share

__all__ = ["OWN_FAILURE", "Extras", "Plan", "Resources", "Share", "image_of", "image_to_launch", "plan", "share"]
