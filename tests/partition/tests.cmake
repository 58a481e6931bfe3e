sl_test(partition split LINK sl_partition)
sl_test(partition pipedream LINK sl_partition)
sl_test(partition cost LINK sl_partition)
sl_test(partition profile LINK sl_partition)
