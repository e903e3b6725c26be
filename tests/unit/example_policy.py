"""The sections of a configuration that are the same in every data interval, as TOML."""

GROUPS_AND_MECHANISM = """
[groups]
columns = ["region"]
keys.product.region = ["north", "south"]
[mechanism]
name = "linear_log"
relative_error = 0.1
floor = 50
"""
