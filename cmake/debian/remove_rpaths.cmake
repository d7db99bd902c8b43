# The plug-ins look for libnetsum relative to themselves (RPATH), which a moved installation needs and a package does not:
# there it is in a folder that the loader searches.
file(GLOB_RECURSE libraries ${CPACK_TEMPORARY_DIRECTORY}/*.so)
foreach(library IN LISTS libraries)
  if(NOT IS_SYMLINK ${library})
    file(RPATH_REMOVE FILE ${library})
  endif()
endforeach()
