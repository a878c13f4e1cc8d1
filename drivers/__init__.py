"""The built-in drivers. The framework finds them through entry points, like anybody else's."""
