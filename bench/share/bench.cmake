add_executable(bench_share share/bench_share.c)
set_target_properties(bench_share PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
target_link_libraries(bench_share PRIVATE sl_scheduler
    $<BUILD_INTERFACE:sl_warnings>)
