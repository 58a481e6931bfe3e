add_executable(bench_control control/bench_control.c)
set_target_properties(bench_control PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
target_link_libraries(bench_control PRIVATE sl_scheduler
    $<BUILD_INTERFACE:sl_warnings>)
