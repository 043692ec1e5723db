# tessera_floor(NAME <floor> SOURCES ... DEPENDS <lower floors>)   one floor, as an object library tessera_<floor>
# tessera_test(NAME <test> SOURCES ... FLOORS <floors> [LIBRARIES ...])   one GoogleTest program over some floors
#
# A floor (or a test) sees only the floors it names and what those depend on.

# One precompiled header for every target.
add_library(tessera_pch OBJECT ${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(tessera_pch PUBLIC tessera_torch)
target_include_directories(tessera_pch PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_precompile_headers(tessera_pch PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.h)

function(tessera_closure out)
  set(all ${ARGN})
  foreach(floor IN LISTS ARGN)
    get_property(deeper GLOBAL PROPERTY TESSERA_CLOSURE_${floor})
    list(APPEND all ${deeper})
  endforeach()
  list(REMOVE_DUPLICATES all)
  set(${out} ${all} PARENT_SCOPE)
endfunction()

function(tessera_floor)
  cmake_parse_arguments(F "" "NAME" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(tessera_${F_NAME} OBJECT ${F_SOURCES})
  target_include_directories(tessera_${F_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(tessera_${F_NAME} PUBLIC tessera_torch ${F_LIBRARIES})
  target_precompile_headers(tessera_${F_NAME} REUSE_FROM tessera_pch)
  tessera_closure(closure ${F_DEPENDS})
  set_property(GLOBAL PROPERTY TESSERA_CLOSURE_${F_NAME} ${closure})
  set_property(GLOBAL PROPERTY TESSERA_LIBRARIES_${F_NAME} ${F_LIBRARIES})
endfunction()

function(tessera_test)
  cmake_parse_arguments(T "" "NAME" "SOURCES;FLOORS;LIBRARIES" ${ARGN})
  find_package(GTest REQUIRED)
  tessera_closure(closure ${T_FLOORS})
  set(objects)
  foreach(floor IN LISTS closure)
    list(APPEND objects $<TARGET_OBJECTS:tessera_${floor}>)
    get_property(libraries GLOBAL PROPERTY TESSERA_LIBRARIES_${floor})
    list(APPEND T_LIBRARIES ${libraries})
  endforeach()
  add_executable(test_${T_NAME} ${T_SOURCES} ${objects})
  target_include_directories(test_${T_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(test_${T_NAME} PRIVATE tessera_torch GTest::gtest GTest::gtest_main ${T_LIBRARIES})
  target_precompile_headers(test_${T_NAME} REUSE_FROM tessera_pch)
  add_test(NAME ${T_NAME} COMMAND test_${T_NAME})
endfunction()
