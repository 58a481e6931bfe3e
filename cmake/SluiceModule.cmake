# How every folder of Sluice is built: one library each, its direction proven.

add_library(sl_warnings INTERFACE)
target_compile_options(sl_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wvla
    -Wundef -Wformat=2 -Wcast-qual -Wwrite-strings -Wstrict-prototypes
    -Wmissing-prototypes -Wold-style-definition -Wswitch-enum)
if(SL_WERROR)
    target_compile_options(sl_warnings INTERFACE -Werror)
endif()

# Flags of all our code: C11, POSIX 2008, own vector loops through OpenMP.
add_library(sl_flags INTERFACE)
target_compile_features(sl_flags INTERFACE c_std_11)
target_compile_definitions(sl_flags INTERFACE _POSIX_C_SOURCE=200809L)
target_include_directories(sl_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(sl_flags INTERFACE -fno-math-errno -fno-trapping-math)
if(SL_NATIVE)
    target_compile_options(sl_flags INTERFACE -march=native -ffp-contract=fast
        $<$<C_COMPILER_ID:GNU>:-mprefer-vector-width=512>)
endif()
if(SL_SANITIZE)
    string(REPLACE ";" "," sl_sanitizers "${SL_SANITIZE}")
    target_compile_options(sl_flags INTERFACE -fsanitize=${sl_sanitizers}
        -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(sl_flags INTERFACE -fsanitize=${sl_sanitizers})
endif()
target_link_libraries(sl_flags INTERFACE Threads::Threads m)

# sl_module(<folder> SOURCES file... [DEPENDS folder...] [LINK target...])
# Makes sl_<folder>, and links it once more as a shared object against its
# declared DEPENDS alone: a call to a higher floor fails there.
function(sl_module folder)
    cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    list(TRANSFORM arg_DEPENDS PREPEND sl_)
    add_library(sl_${folder} STATIC ${arg_SOURCES})
    set_target_properties(sl_${folder} PROPERTIES C_EXTENSIONS OFF
        POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(sl_${folder}
        PUBLIC sl_flags ${arg_DEPENDS} ${arg_LINK}
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
    if(NOT SL_SANITIZE)
        file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/linkcheck.c
             "extern int sl_linkcheck_${folder};\nint sl_linkcheck_${folder};\n")
        add_library(sl_${folder}_linkcheck SHARED
            ${CMAKE_CURRENT_BINARY_DIR}/linkcheck.c)
        target_link_options(sl_${folder}_linkcheck PRIVATE -Wl,-z,defs
            -Wl,--whole-archive $<TARGET_FILE:sl_${folder}>
            -Wl,--no-whole-archive)
        target_link_libraries(sl_${folder}_linkcheck
            PRIVATE ${arg_DEPENDS} ${arg_LINK} Threads::Threads m)
        add_dependencies(sl_${folder}_linkcheck sl_${folder})
    endif()
endfunction()

# sl_test(<module> <name> [WRAP_ALLOC] [LINK target...]):
# tests/<module>/test_<name>.c. WRAP_ALLOC lets the test make host allocations
# of the libraries it links fail (tests/support/alloc_fail.h).
function(sl_test module name)
    cmake_parse_arguments(arg "WRAP_ALLOC" "TIMEOUT" "LINK" ${ARGN})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    set(target test_${module}_${name})
    add_executable(${target} ${module}/test_${name}.c)
    set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(${target} PRIVATE sl_test_support ${arg_LINK}
        $<BUILD_INTERFACE:sl_warnings>)
    if(arg_WRAP_ALLOC)
        target_sources(${target} PRIVATE support/alloc_fail.c)
        foreach(call malloc calloc realloc aligned_alloc posix_memalign)
            target_link_options(${target} PRIVATE -Wl,--wrap=${call})
        endforeach()
    endif()
    add_test(NAME ${module}.${name} COMMAND ${target})
    set_tests_properties(${module}.${name} PROPERTIES LABELS ${module}
        TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
        ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
endfunction()
