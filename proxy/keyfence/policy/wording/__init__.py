"""How keys and violations are shown to people: secrets masked, one message and one hint each."""
