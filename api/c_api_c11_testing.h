/* A program in C11 that uses every function of the C ABI. */
#ifndef NETSUM_API_C_API_C11_TESTING_H_
#define NETSUM_API_C_API_C11_TESTING_H_

#ifdef __cplusplus
extern "C" {
#endif

/* NULL if all went well, otherwise what did not. */
const char* netsum_c11_program(void);

#ifdef __cplusplus
}
#endif

#endif /* NETSUM_API_C_API_C11_TESTING_H_ */
