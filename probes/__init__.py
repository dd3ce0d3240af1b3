"""Questions put to a model server, each with three answers and its evidence. Imports no `gateway`."""
