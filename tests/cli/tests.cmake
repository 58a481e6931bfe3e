sl_test(cli ranks LINK sl_cli)
sl_test(cli table LINK sl_cli)

# Scripts that run the program. Open MPI is not instrumented for races: scripts
# that start ranks leave the ranks out where races are looked for. What Open MPI
# holds on to at its end is no leak of ours: two scripts with ranks look for
# leaks beside it, the others for none.
set(sl_scripts cli.program cli.control cli.steering cli.checkpoint cli.kills cli.sharing
    cli.launch cli.simulate house.layout house.headers)
set(sl_rank_scripts cli.checkpoint cli.kills cli.launch cli.simulate)
set(sl_names program control steering checkpoint kills sharing launch simulate)
if(NOT SL_SANITIZE MATCHES thread)
    # thousands of steps: too slow there; engine.rebalance, engine.repartition
    # and engine.moving_ranks look for races
    list(APPEND sl_scripts cli.rebalance)
    list(APPEND sl_rank_scripts cli.rebalance)
    list(APPEND sl_names rebalance)
endif()
foreach(name ${sl_names})
    add_test(NAME cli.${name}
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_${name}.sh
            $<TARGET_FILE:sluice>)
endforeach()
if(SL_CUDA STREQUAL "STANDIN")
    add_test(NAME cuda.cli
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cuda.sh
            $<TARGET_FILE:sluice>)
    add_test(NAME cuda.sharing
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cuda_sharing.sh
            $<TARGET_FILE:sluice>)
    set_tests_properties(cuda.cli cuda.sharing PROPERTIES LABELS cuda
        TIMEOUT 900 ENVIRONMENT "${SL_TEST_ENVIRONMENT};SL_STANDIN_DEVICES=2")
endif()
if(SL_CUDA STREQUAL "STANDIN" AND NOT SL_SANITIZE)
    add_test(NAME cuda.mpi
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cuda_mpi.sh
            $<TARGET_FILE:sluice> $<TARGET_FILE:sl_aware_mpi>)
    # not with sanitizers: what is preloaded comes before their own library
    set_tests_properties(cuda.mpi PROPERTIES LABELS cuda TIMEOUT 900
        SKIP_RETURN_CODE 77 ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
endif()
set(sl_doctor_cuda no)
if(SL_CUDA STREQUAL "STANDIN")
    set(sl_doctor_cuda standin)
elseif(SL_HAVE_CUDA)
    set(sl_doctor_cuda toolkit)
endif()
add_test(NAME cli.doctor
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_doctor.sh
        $<TARGET_FILE:sluice> $<TARGET_FILE_DIR:sl_fake_nvml> ${sl_doctor_cuda})
list(APPEND sl_scripts cli.doctor)
add_test(NAME cli.examples
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_examples.sh
        $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR}/examples)
list(APPEND sl_scripts cli.examples)
add_test(NAME house.layout
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_layout.sh)
add_test(NAME house.headers
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_headers.sh)

# Hosts made of name spaces, and Slurm; both only as root.
add_executable(netns_relay netns/relay.c)
set_target_properties(netns_relay PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(netns_relay PRIVATE sl_flags
    $<BUILD_INTERFACE:sl_warnings>)

if(NOT SL_SANITIZE MATCHES thread)
    add_test(NAME cli.mpi
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_mpi.sh
            $<TARGET_FILE:sluice>)
    add_test(NAME cli.faults
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_faults.sh
            $<TARGET_FILE:sluice>)
    add_test(NAME network.hosts
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/netns/run.sh $<TARGET_FILE:sluice>
            $<TARGET_FILE:netns_relay>)
    add_test(NAME network.slurm
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slurm/run.sh $<TARGET_FILE:sluice>)
    set_tests_properties(network.hosts network.slurm PROPERTIES LABELS network)
    list(APPEND sl_scripts cli.mpi cli.faults network.hosts network.slurm)
    list(APPEND sl_rank_scripts cli.mpi cli.faults network.hosts network.slurm)
    set_tests_properties(cli.mpi cli.faults network.hosts network.slurm
        PROPERTIES RUN_SERIAL TRUE)
endif()

# A program that is killed at a chosen call; not under sanitizers, which want
# to be loaded first.
if(NOT SL_SANITIZE)
    add_library(sl_kill_step MODULE support/kill_step.c)
    set_target_properties(sl_kill_step PROPERTIES C_EXTENSIONS OFF
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(sl_kill_step PRIVATE sl_flags
        $<BUILD_INTERFACE:sl_warnings>)
    target_compile_options(sl_kill_step PRIVATE -U_FORTIFY_SOURCE)
    add_test(NAME cli.kill_steps
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_kill_steps.sh
            $<TARGET_FILE:sluice> $<TARGET_FILE:sl_kill_step>)
    list(APPEND sl_scripts cli.kill_steps)
endif()
# CPU devices are the default where there is no GPU, the stand-in's included.
set(sl_cli_environment ${SL_TEST_ENVIRONMENT} SL_STANDIN_DEVICES=0)
set_tests_properties(${sl_scripts} PROPERTIES
    TIMEOUT 900 SKIP_RETURN_CODE 77 ENVIRONMENT "${sl_cli_environment}")
# Where ranks begin and end in order, leaks are looked for.
set(sl_leak_scripts cli.kills cli.launch)
set(sl_lsan "${CMAKE_CURRENT_SOURCE_DIR}/support/lsan_openmpi.supp")
set_property(TEST ${sl_leak_scripts} APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${sl_lsan}:print_suppressions=0"
    "ASAN_OPTIONS=fast_unwind_on_malloc=0")
list(REMOVE_ITEM sl_rank_scripts ${sl_leak_scripts})
set_property(TEST ${sl_rank_scripts} APPEND PROPERTY ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=0")
list(APPEND sl_rank_scripts ${sl_leak_scripts})
# 100 kills take too long with checks
set_tests_properties(cli.kills PROPERTIES PROCESSORS 2)
if(SL_SANITIZE)
    set_property(TEST cli.kills APPEND PROPERTY ENVIRONMENT "SLUICE_KILLS=20")
endif()
if(SL_SANITIZE MATCHES thread)
    set_property(TEST ${sl_rank_scripts} APPEND PROPERTY ENVIRONMENT
        "SLUICE_NO_MPI=1")
endif()

# What `cmake --install` leaves is enough for others.
if(NOT SL_SANITIZE)
    add_test(NAME cli.install
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_install.sh
            ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
    set_tests_properties(cli.install PROPERTIES
        ENVIRONMENT "${sl_cli_environment}")
endif()

# Skipped without PyTorch.
find_program(SL_PYTHON python3)
if(SL_PYTHON)
    add_test(NAME parity.pytorch
        COMMAND ${SL_PYTHON}
            ${CMAKE_CURRENT_SOURCE_DIR}/parity/parity.py $<TARGET_FILE:sluice>)
    set_tests_properties(parity.pytorch PROPERTIES SKIP_RETURN_CODE 77)
endif()
