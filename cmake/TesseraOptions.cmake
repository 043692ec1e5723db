# Options of the build, all prefixed TESSERA_, and the flags every target shares.
option(TESSERA_TESTS "Build the tests" ON)
option(TESSERA_BENCHMARKS "Build the benchmarks" OFF)
option(TESSERA_WERROR "Warnings are errors, as the preset `release` has it" OFF)
option(TESSERA_UNITY "Compile the files of a folder together: a cold build costs a quarter, one changed file costs its folder" OFF)
set(TESSERA_TEST_LIMIT 1200 CACHE STRING "Seconds after which a test is taken to hang: far above what a slow, busy machine needs")
set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
if(SKBUILD)  # the Python that builds the wheel
  set(TESSERA_PYTHON ${Python_EXECUTABLE} CACHE FILEPATH "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)  # half of a library's symbols would be copies of what headers have
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${TESSERA_CCACHE})
endif()

# No contraction: the order and rounding of every sum is ours to choose.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -ffp-contract=off)

if(TESSERA_WERROR)
  add_compile_options(-Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These guess at what the standard library's and libtorch's inlined code does, and other versions guess otherwise.
    add_compile_options(-Wno-error=array-bounds -Wno-error=free-nonheap-object -Wno-error=maybe-uninitialized -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=stringop-overread)
  endif()
endif()

# One kind of code for libraries and programs, so that all share the precompiled header. Nobody puts another function in the place of one of ours, so
# those that are called in their file may be inlined there; calls into libtorch go by the table of addresses alone, without a stub each.
add_compile_options(-fPIC -fno-semantic-interposition -fno-plt)

# Messages name files as the repository does, wherever it lies.
add_compile_options(-fmacro-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=)

if(TESSERA_SANITIZE)
  # A null pointer faults without a check of its own; checks of sizes and vtables double what compiling takes and have found nothing.
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-sanitize=null,object-size,vptr -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()
