# The component `wheel`: what the Python package holds besides its Python files. pyproject.toml installs it; `cmake --install` without
# a component does not.

# Puts the file of TARGET into the package as FILE; it finds libraries in the folders that follow, relative to its own.
function(tessera_in_wheel target file)
  get_filename_component(folder tessera/${file} DIRECTORY)
  get_filename_component(name ${file} NAME)
  list(TRANSFORM ARGN PREPEND "\\$ORIGIN/" OUTPUT_VARIABLE paths)
  list(JOIN paths ":" paths)
  install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${folder} RENAME ${name} COMPONENT wheel EXCLUDE_FROM_ALL)
  install(CODE "file(RPATH_SET FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/tessera/${file}\" NEW_RPATH \"${paths}\")"
    COMPONENT wheel EXCLUDE_FROM_ALL)
endfunction()

get_target_property(soversion tessera SOVERSION)
get_target_property(suffix tessera_python SUFFIX)
tessera_in_wheel(tessera lib/libtessera.so.${soversion} ../../torch/lib)
tessera_in_wheel(tessera_program bin/tessera ../lib ../../torch/lib)
tessera_in_wheel(tessera_python _C${suffix} lib ../torch/lib)
install(FILES ${PROJECT_BINARY_DIR}/python/tessera/_built_for.py DESTINATION tessera COMPONENT wheel EXCLUDE_FROM_ALL)

add_custom_target(tessera_wheel DEPENDS tessera tessera_program tessera_python)

# `python -m tessera` of the package in the build folder.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/python/tessera/bin)
file(CREATE_LINK ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/tessera ${PROJECT_BINARY_DIR}/python/tessera/bin/tessera SYMBOLIC)
