"""Networks from samples to the unit sphere of the shared representation space."""

from ratemesh.encoders.encoder import Encoder, EncoderSpec
from ratemesh.encoders.modules import OwnModule, check_width, rebuilt, recipe_of, width_of
from ratemesh.encoders.networks import ENCODERS

__all__ = ["ENCODERS", "Encoder", "EncoderSpec", "OwnModule", "check_width", "rebuilt", "recipe_of", "width_of"]
