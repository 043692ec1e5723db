# libtessera, of every floor but cli; the program `tessera`; and their installation for find_package(tessera).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(objects)
set(libraries)
foreach(floor IN LISTS TESSERA_FLOORS)
  if(TARGET tessera_${floor} AND NOT floor MATCHES "cli|python")
    list(APPEND objects $<TARGET_OBJECTS:tessera_${floor}>)
    get_property(of_floor GLOBAL PROPERTY TESSERA_LIBRARIES_${floor})
    list(APPEND libraries ${of_floor})
  endif()
endforeach()
list(REMOVE_DUPLICATES libraries)

# The config file links the torch that it finds on the user's machine, so ours is not exported.
add_library(tessera SHARED ${objects})
set_target_properties(tessera PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION 0
  INSTALL_RPATH "${TESSERA_TORCH_DIR}/lib")
# Calls from one of its functions to another go straight there, not by way of a table: two lines of memory less each.
target_link_options(tessera PRIVATE
  -Wl,-Bsymbolic-functions -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/hidden.map)
set_target_properties(tessera PROPERTIES LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/hidden.map)
target_link_libraries(tessera PUBLIC $<BUILD_INTERFACE:tessera_torch> PRIVATE ${libraries})
target_include_directories(tessera INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(tessera::tessera ALIAS tessera)

if(TARGET tessera_cli AND EXISTS ${PROJECT_SOURCE_DIR}/tessera/cli/main.cpp)
  get_property(libraries GLOBAL PROPERTY TESSERA_LIBRARIES_cli)
  add_executable(tessera_program ${PROJECT_SOURCE_DIR}/tessera/cli/main.cpp $<TARGET_OBJECTS:tessera_cli>)
  target_link_libraries(tessera_program PRIVATE tessera ${libraries})
  target_precompile_headers(tessera_program REUSE_FROM tessera_pch)
  set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TESSERA_TORCH_DIR}/lib")
  install(TARGETS tessera_program)
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(TARGETS tessera EXPORT tesseraTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE PATTERN "python" EXCLUDE)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TesseraTorch.cmake DESTINATION ${package})
