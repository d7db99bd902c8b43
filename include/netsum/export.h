// Marks symbols that the shared library exports. All others are hidden.
#ifndef NETSUM_EXPORT_H_
#define NETSUM_EXPORT_H_

#define NETSUM_EXPORT [[gnu::visibility("default")]]

#endif  // NETSUM_EXPORT_H_
