"""How the monitor is deployed; what is long or must agree is made by code."""
