sl_test(data images LINK sl_engine PkgConfig::zlib)
sl_test(data tokens LINK sl_engine)
sl_test(data loader LINK sl_engine)
sl_test(data config LINK sl_engine)

# Its allocation calls pass through the test, which lets them fail.
sl_test(data oom LINK sl_engine
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc
    -Wl,--wrap=strdup)
