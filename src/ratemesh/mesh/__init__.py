"""A mesh as an object: own networks and data in, trained encoders and predictions out."""
