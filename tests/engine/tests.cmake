sl_test(engine optimizer LINK sl_engine)
sl_test(engine schedule LINK sl_engine)
sl_test(engine safetensors LINK sl_engine)
sl_test(engine report LINK sl_engine)

add_library(engine_fixture STATIC engine/engine_fixture.c)
set_target_properties(engine_fixture PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(engine_fixture PUBLIC sl_engine sl_test_support
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(engine exact LINK engine_fixture TIMEOUT 600)
sl_test(engine engine LINK engine_fixture)
sl_test(engine replicas LINK engine_fixture TIMEOUT 600)
add_library(rank_bed STATIC engine/rank_bed.c)
set_target_properties(rank_bed PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(rank_bed PUBLIC engine_fixture
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(engine ranks LINK rank_bed TIMEOUT 600)
sl_test(engine moving_ranks LINK rank_bed TIMEOUT 600)
sl_test(engine memory_plan LINK engine_fixture TIMEOUT 300)
sl_test(engine rebalance LINK sl_engine)
sl_test(engine repartition WRAP_ALLOC LINK engine_fixture TIMEOUT 600)
target_link_options(test_engine_repartition PRIVATE -Wl,--wrap=sl_mem_alloc)
sl_test(engine fit LINK engine_fixture TIMEOUT 600)
sl_test(engine limits LINK engine_fixture)
sl_test(engine oom WRAP_ALLOC LINK engine_fixture)

add_library(world_bed STATIC engine/world_bed.c)
set_target_properties(world_bed PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(world_bed PUBLIC sl_engine
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(engine world LINK world_bed TIMEOUT 600)

# Ranks that are processes. Open MPI is not instrumented for races.
add_executable(world_mpi engine/world_mpi.c)
set_target_properties(world_mpi PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(world_mpi PRIVATE world_bed
    $<BUILD_INTERFACE:sl_warnings>)
function(world_mpi_test name ranks mode)
    add_test(NAME engine.world_mpi_${name}
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/engine/world_mpi.sh
            $<TARGET_FILE:world_mpi> ${ranks} ${mode} ${ARGN})
    set_tests_properties(engine.world_mpi_${name} PROPERTIES LABELS engine
        TIMEOUT 150 SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
        "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/support/lsan_openmpi.supp")
endfunction()
if(NOT SL_SANITIZE MATCHES thread)
    foreach(ranks 2 3 4)
        world_mpi_test(${ranks} ${ranks} all)
    endforeach()
    world_mpi_test(kill 3 kill 1)
    world_mpi_test(kill_first 3 kill 0)
    world_mpi_test(stop 3 stop 2)
    world_mpi_test(stop_first 2 stop 0)
    world_mpi_test(fail 3 fail 1)
endif()
