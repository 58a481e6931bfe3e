add_executable(bench_world world/bench_world.c)
set_target_properties(bench_world PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
target_link_libraries(bench_world PRIVATE sl_engine
    $<BUILD_INTERFACE:sl_warnings>)
