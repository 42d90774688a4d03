"""The name under which preparers pass the resource group."""

RESOURCE_GROUP_PARAM = "resource_group"
