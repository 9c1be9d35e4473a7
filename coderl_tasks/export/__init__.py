"""A trained policy as files that other tools load: fetched from the service, checked, described, published."""
