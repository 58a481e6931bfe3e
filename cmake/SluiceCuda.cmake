# CUDA devices. SL_CUDA says against what they are built:
#   AUTO     the toolkit, where there are a toolkit and a GPU (default)
#   ON       the toolkit; an error when something of it is missing
#   OFF      nothing: CPU devices only
#   STANDIN  tests/cuda_standin, which runs all of it on the CPU; for tests
# Sets SL_HAVE_CUDA (0 or 1, also for the sources) and, when 1, makes
# sl_cuda_runtime, what folders with CUDA code link.

set(SL_CUDA AUTO CACHE STRING "CUDA devices: AUTO, ON, OFF, STANDIN")
set_property(CACHE SL_CUDA PROPERTY STRINGS AUTO ON OFF STANDIN)
set(SL_CUDA_ARCHITECTURES 80-real 90-real 100-real CACHE STRING
    "GPU architectures that kernels are compiled for")
set(SL_HAVE_CUDA 0)

# What is missing of the toolkit, in words; empty when all is there.
macro(sl_find_toolkit)
    set(sl_cuda_missing)
    find_package(CUDAToolkit 12.0 QUIET)
    if(NOT CUDAToolkit_FOUND)
        set(sl_cuda_missing "no CUDA toolkit of version 12 or newer "
            "(-DCUDAToolkit_ROOT= names its folder)")
    else()
        get_filename_component(sl_cuda_root ${CUDAToolkit_BIN_DIR} DIRECTORY)
        foreach(library cudnn nccl)
            string(TOUPPER ${library} upper)
            find_path(${upper}_INCLUDE_DIR ${library}.h
                HINTS ${${upper}_ROOT} ${sl_cuda_root} PATH_SUFFIXES include)
            find_library(${upper}_LIBRARY ${library}
                HINTS ${${upper}_ROOT} ${sl_cuda_root}
                PATH_SUFFIXES lib64 lib)
            if(NOT ${upper}_INCLUDE_DIR OR NOT ${upper}_LIBRARY)
                list(APPEND sl_cuda_missing "no ${library}.h or "
                    "lib${library} (-D${upper}_ROOT= names its folder)")
            endif()
        endforeach()
    endif()
    list(JOIN sl_cuda_missing "" sl_cuda_missing)
endmacro()

if(SL_CUDA STREQUAL "STANDIN")
    message(STATUS "CUDA: the stand-in of tests/cuda_standin, on the CPU")
    enable_language(CXX)
    set(SL_HAVE_CUDA 1)
elseif(SL_CUDA STREQUAL "OFF")
    message(STATUS "CUDA: off")
else()
    sl_find_toolkit()
    if(SL_CUDA STREQUAL "AUTO" AND sl_cuda_missing)
        message(STATUS "CUDA: not built; ${sl_cuda_missing}")
    elseif(SL_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl)
        message(STATUS "CUDA: not built; toolkit ${CUDAToolkit_VERSION} is in "
            "${sl_cuda_root}, but no GPU is here (-DSL_CUDA=ON builds it all "
            "the same)")
    elseif(sl_cuda_missing)
        message(FATAL_ERROR "CUDA: asked for (SL_CUDA=ON), but: "
            "${sl_cuda_missing}")
    else()
        message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} in "
            "${sl_cuda_root}, for ${SL_CUDA_ARCHITECTURES}")
        set(CMAKE_CUDA_ARCHITECTURES ${SL_CUDA_ARCHITECTURES})
        if(NOT CMAKE_CUDA_COMPILER)
            set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
        endif()
        enable_language(CUDA)
        set(SL_HAVE_CUDA 1)
    endif()
endif()
target_compile_definitions(sl_flags INTERFACE SL_HAVE_CUDA=${SL_HAVE_CUDA})

if(SL_CUDA STREQUAL "STANDIN")
    add_subdirectory(tests/cuda_standin)
    add_library(sl_cuda_runtime ALIAS sl_cuda_standin)
elseif(SL_HAVE_CUDA)
    add_library(sl_cuda_runtime INTERFACE)
    target_include_directories(sl_cuda_runtime SYSTEM INTERFACE
        ${CUDNN_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
    target_link_libraries(sl_cuda_runtime INTERFACE CUDA::cudart
        CUDA::cublasLt ${CUDNN_LIBRARY} ${NCCL_LIBRARY})
endif()

# sl_cuda_kernels(<target> file.cu...): kernels as a library that C programs
# link. Sums and products stay apart in kernels, so that their bits do not
# depend on the compiler; they wait for memory anyway.
function(sl_cuda_kernels target)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/
        OUTPUT_VARIABLE sources)
    set(werror $<$<BOOL:${SL_WERROR}>:-Werror>)
    if(SL_CUDA STREQUAL "STANDIN")
        set(copies)
        foreach(source IN LISTS sources)
            get_filename_component(name ${source} NAME_WE)
            set(copy ${CMAKE_CURRENT_BINARY_DIR}/standin_${name}.cpp)
            file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${source}\"\n")
            list(APPEND copies ${copy})
        endforeach()
        add_library(${target}_code STATIC ${copies})
        set_source_files_properties(${copies} PROPERTIES
            COMPILE_OPTIONS "-ffp-contract=off;-Wall;-Wextra;${werror}")
        target_link_libraries(${target}_code PRIVATE sl_flags sl_cuda_standin)
    else()
        # no flags of the C code: nvcc has others
        add_library(${target}_code STATIC ${sources})
        target_include_directories(${target}_code PRIVATE
            ${PROJECT_SOURCE_DIR})
        target_compile_options(${target}_code PRIVATE -fmad=false
            -Xcompiler=-Wall,-Wextra)
        if(SL_WERROR)
            target_compile_options(${target}_code PRIVATE
                "SHELL:-Werror all-warnings" -Xcompiler=-Werror)
        endif()
        target_link_libraries(${target}_code PRIVATE CUDA::cudart)
    endif()
    set_target_properties(${target}_code PROPERTIES
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
        POSITION_INDEPENDENT_CODE ON)
    # as somebody else's: programs stay C and are linked by the C compiler
    add_library(${target} STATIC IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION
        ${CMAKE_CURRENT_BINARY_DIR}/lib${target}_code.a)
    add_dependencies(${target} ${target}_code)
    target_link_libraries(${target} INTERFACE sl_memory sl_cuda_runtime stdc++)
endfunction()
