"""Resource groups: there are none, and `SERVICEBUS_RESOURCE_GROUP` says that none is to be made."""


class ResourceManagementClient:
    pass
