"""Parts that several operations share: steps, the resources that they change, and checks at acceptance."""
