sl_test(cli ranks LINK sl_cli)
sl_test(cli table LINK sl_cli)

# Scripts that run the program. Open MPI is not instrumented for races, and the
# modules that it unloads leave blocks behind that no leak can be traced to:
# scripts that start ranks look for no leaks (engine.ranks and engine.replicas
# do), and leave the ranks out where races are looked for.
set(sl_scripts cli.program cli.control cli.checkpoint cli.sharing cli.launch
    cli.simulate house.layout house.headers)
set(sl_rank_scripts cli.checkpoint cli.launch cli.simulate)
set(sl_names program control checkpoint sharing launch simulate)
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
# CPU devices are the default where there is no GPU, the stand-in's included.
set(sl_cli_environment ${SL_TEST_ENVIRONMENT} SL_STANDIN_DEVICES=0)
set_tests_properties(${sl_scripts} PROPERTIES
    TIMEOUT 900 SKIP_RETURN_CODE 77 ENVIRONMENT "${sl_cli_environment}")
set_property(TEST ${sl_rank_scripts} APPEND PROPERTY ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=0")
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
