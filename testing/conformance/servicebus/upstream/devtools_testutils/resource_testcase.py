"""The name under which preparers hand on the resource group."""

RESOURCE_GROUP_PARAM = "resource_group"
