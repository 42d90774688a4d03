"""Resource groups do not exist; because of `SERVICEBUS_RESOURCE_GROUP` none is created."""


class ResourceManagementClient:
    pass
