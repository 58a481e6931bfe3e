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
add_executable(world_ranks engine/world_ranks.c)
set_target_properties(world_ranks PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(world_ranks PRIVATE world_bed
    $<BUILD_INTERFACE:sl_warnings>)
function(world_test link ranks mode)
    set(name engine.world_${link}_${mode}_${ranks})
    if(ARGN)
        string(APPEND name _${ARGN})
    endif()
    add_test(NAME ${name}
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/engine/world_ranks.sh
            $<TARGET_FILE:world_ranks> ${link} ${ranks} ${mode} ${ARGN})
    set(lsan ${CMAKE_CURRENT_SOURCE_DIR}/support/lsan_openmpi.supp)
    set_tests_properties(${name} PROPERTIES LABELS engine
        TIMEOUT 150 SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
        "LSAN_OPTIONS=suppressions=${lsan};ASAN_OPTIONS=fast_unwind_on_malloc=0")
endfunction()
foreach(link mpi tcp)
    if(link STREQUAL mpi AND SL_SANITIZE MATCHES thread)
        continue()
    endif()
    foreach(ranks 2 3 4)
        world_test(${link} ${ranks} all)
    endforeach()
    world_test(${link} 3 kill 1)
    world_test(${link} 3 orphan 1)
    world_test(${link} 3 orphan 0)
    world_test(${link} 3 stop 2)
    world_test(${link} 2 stop 0)
    world_test(${link} 3 fail 1)
endforeach()
