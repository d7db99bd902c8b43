# The Debian packages, which `make deb` writes to dist/: one for each component of the install rules. CPack runs
# dpkg-shlibdeps for the dependencies.
set(debian_folder ${PROJECT_SOURCE_DIR}/cmake/debian)
file(STRINGS ${debian_folder}/changelog newest_change LIMIT_COUNT 1)
if(NOT newest_change MATCHES "^netsum \\(${PROJECT_VERSION}\\) ")
  message(FATAL_ERROR "the first entry of cmake/debian/changelog is not of version ${PROJECT_VERSION}: ${newest_change}")
endif()
# Debian asks for compressed documents, without a time in them.
set(debian_made ${PROJECT_BINARY_DIR}/package)
foreach(document changelog netsum.1)
  execute_process(COMMAND gzip -9nc ${debian_folder}/${document} OUTPUT_FILE ${debian_made}/${document}.gz
    COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${debian_folder}/${document})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME netsum)
set(CPACK_PACKAGE_VENDOR "the netsum authors")
set(CPACK_PACKAGE_CONTACT "the netsum authors <authors@netsum.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # it would be the first line of every description
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_PRE_BUILD_SCRIPTS ${debian_folder}/remove_rpaths.cmake)
set(CPACK_COMPONENTS_ALL "")
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# libnetsum is found here while the packages of its users are made; they depend on its package by DEPENDS below.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/api)

# debian_package(<component> NAME ... SECTION ... DESCRIPTION ... [DEPENDS <component>...])
macro(debian_package component)
  cmake_parse_arguments(ARG "" "NAME;SECTION;DESCRIPTION" "DEPENDS" ${ARGN})
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${ARG_NAME})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${ARG_SECTION})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION ${ARG_DESCRIPTION})
  set(CPACK_COMPONENT_${upper}_DEPENDS ${ARG_DEPENDS})
  if(NOT ARG_NAME STREQUAL "netsum")
    set(CPACK_DEBIAN_${upper}_PACKAGE_SOURCE netsum)
  endif()
  install(FILES ${debian_folder}/copyright ${debian_made}/changelog.gz DESTINATION share/doc/${ARG_NAME}
    COMPONENT ${component} EXCLUDE_FROM_ALL)
  if(EXISTS ${debian_folder}/overrides/${ARG_NAME})
    install(FILES ${debian_folder}/overrides/${ARG_NAME} DESTINATION share/lintian/overrides
      COMPONENT ${component} EXCLUDE_FROM_ALL)
  endif()
endmacro()

# The number is that of the library's SONAME. Before 1.0 every version may change the ABI.
debian_package(library NAME libnetsum${PROJECT_VERSION_MAJOR} SECTION libs DESCRIPTION
"library that sums gradients inside the network
The all-reduces and other collectives of distributed training, summed by
aggregators in the network, by the hosts, or in shared memory.")
file(WRITE ${debian_made}/shlibs
  "libnetsum ${PROJECT_VERSION_MAJOR} libnetsum${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${debian_made}/shlibs ${debian_folder}/triggers)

debian_package(development NAME libnetsum-dev SECTION libdevel DEPENDS library DESCRIPTION
"development files of the library that sums gradients inside the network
Headers for C++20 and C99, a CMake package and a pkg-config file.")

if(TARGET netsum_command)
  debian_package(command NAME netsum SECTION net DESCRIPTION
"aggregator that sums gradients inside the network, with its tools
The command netsum, whose subcommands run an aggregator in user space or in
the kernel, show its state, check hosts, plan and measure, and the systemd unit
netsum-aggregator, which is not started when the package is installed.")
  set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS iproute2)  # for virtual racks
  set(scripts ${debian_folder}/netsum)
  set(CPACK_DEBIAN_COMMAND_PACKAGE_CONTROL_EXTRA ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/netsum-aggregator-xdp.conf ${PROJECT_SOURCE_DIR}/deploy/grafana-dashboard.json
      ${PROJECT_SOURCE_DIR}/deploy/prometheus-rules.yaml
    DESTINATION share/doc/netsum/examples COMPONENT command EXCLUDE_FROM_ALL)
  install(FILES ${debian_made}/netsum.1.gz DESTINATION share/man/man1 COMPONENT command EXCLUDE_FROM_ALL)
endif()

if(TARGET mca_coll_netsum AND NETSUM_OMPI_COMPONENTS)
  debian_package(openmpi NAME netsum-openmpi SECTION net DEPENDS library DESCRIPTION
"component of Open MPI that sums collectives inside the network
Runs the collectives of unmodified MPI programs in the network, if mpirun is
told so: mpirun --mca coll_netsum_enable 1.")
endif()

if(TARGET nccl-net-netsum)
  debian_package(nccl NAME netsum-nccl SECTION net DEPENDS library DESCRIPTION
"plug-in of NCCL that sums collectives inside the network
Runs all-reduces, all-gathers and reduce-scatters of NCCL 2.20 and later in the
network between hosts, if the environment says so: NCCL_NET_PLUGIN=netsum.")
endif()

include(CPack)
