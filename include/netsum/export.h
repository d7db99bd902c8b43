// What the shared library shows to its users; everything else in it is hidden.
#ifndef NETSUM_EXPORT_H_
#define NETSUM_EXPORT_H_

#define NETSUM_EXPORT [[gnu::visibility("default")]]

#endif  // NETSUM_EXPORT_H_
