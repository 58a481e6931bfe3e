add_executable(bench_alloc memory/bench_alloc.c memory/trace_file.c)
target_link_libraries(bench_alloc PRIVATE sl_memory
    $<BUILD_INTERFACE:sl_warnings>)
add_executable(bench_job memory/bench_job.c)
target_link_libraries(bench_job PRIVATE sl_cli $<BUILD_INTERFACE:sl_warnings>)
foreach(program bench_alloc bench_job)
    set_target_properties(${program} PROPERTIES C_EXTENSIONS OFF
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endforeach()
