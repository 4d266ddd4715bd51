"""Networks from samples to the unit sphere of the shared representation space."""

from ratemesh.encoders.encoder import Encoder, EncoderSpec
from ratemesh.encoders.networks import ENCODERS

__all__ = ["ENCODERS", "Encoder", "EncoderSpec"]
