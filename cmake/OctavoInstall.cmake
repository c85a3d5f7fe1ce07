# What other projects get: the shared library with only its own symbols, headers, a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)

# Hidden visibility already keeps inner symbols in. The script also keeps in the templates of the C++ library that end
# up here: those are "default" whatever the flags say, and would replace a caller's copies.
set(OCTAVO_EXPORTS ${PROJECT_SOURCE_DIR}/cmake/octavo.map)
target_link_options(octavo PRIVATE LINKER:--version-script=${OCTAVO_EXPORTS} LINKER:--no-undefined-version)
set_target_properties(octavo PROPERTIES LINK_DEPENDS ${OCTAVO_EXPORTS})
if(NOT OCTAVO_SANITIZE)
  target_link_options(octavo PRIVATE LINKER:-z,defs)
endif()

set(OCTAVO_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/octavo)
install(TARGETS octavo EXPORT octavo-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT octavo NAMELINK_COMPONENT octavo)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/octavo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT octavo
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT octavo-targets NAMESPACE octavo:: DESTINATION ${OCTAVO_PACKAGE_DIR} COMPONENT octavo)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/octavo-config.cmake.in ${PROJECT_BINARY_DIR}/octavo-config.cmake
  INSTALL_DESTINATION ${OCTAVO_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break sources, so 0.2 does not answer a search for 0.1.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/octavo-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/octavo-config.cmake ${PROJECT_BINARY_DIR}/octavo-config-version.cmake
  DESTINATION ${OCTAVO_PACKAGE_DIR} COMPONENT octavo)

# An absolute CMAKE_INSTALL_LIBDIR (some distributions) must not get the prefix in front.
foreach(kind LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(OCTAVO_PC_${kind} ${CMAKE_INSTALL_${kind}})
  else()
    set(OCTAVO_PC_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
# The prefix is found from where the file is, so that `cmake --install --prefix` and a moved tree both work.
file(RELATIVE_PATH OCTAVO_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(${PROJECT_SOURCE_DIR}/cmake/octavo.pc.in ${PROJECT_BINARY_DIR}/octavo.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/octavo.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT octavo)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT octavo)
