"""Well-known data sets from the network into the data folder; nothing here runs unless it is asked for."""
