"""scikit-learn's side of the house: what people fit, predict with and put into pipelines."""
