"""Markets: prices of assets, generated years, and federations of trading parties."""
