"""Policy files to a compiled policy, or to every fault that they have."""
