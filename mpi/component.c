/* The component as Open MPI sees it: its name, its parameters, and whether it takes part. */
#include "mpi/coll_netsum.h"

static int register_parameters(void);
static int init_query(bool enable_progress_threads, bool enable_mpi_threads);
static int close_component(void);

netsum_component mca_coll_netsum_component = {
    .super =
        {
            .collm_version =
                {
                    MCA_COLL_BASE_VERSION_2_0_0,
                    .mca_component_name = "netsum",
                    MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                                          OMPI_RELEASE_VERSION),
                    .mca_close_component = close_component,
                    .mca_register_component_params = register_parameters,
                },
            .collm_data = {MCA_BASE_METADATA_PARAM_NONE},
            .collm_init_query = init_query,
            .collm_comm_query = netsum_comm_query,
        },
};

static void parameter(const char* name, const char* description, mca_base_var_type_t type, void* storage) {
  (void)mca_base_component_var_register(&mca_coll_netsum_component.super.collm_version, name, description,
                                        type, NULL, 0, 0, OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_READONLY,
                                        storage);
}

static int register_parameters(void) {
  netsum_component* c = &mca_coll_netsum_component;
  c->enable = false;
  parameter("enable", "Whether collectives are summed in the network by netsum", MCA_BASE_VAR_TYPE_BOOL,
            &c->enable);
  c->priority = 90;
  parameter("priority", "Priority of the component, 0 to 100", MCA_BASE_VAR_TYPE_INT, &c->priority);
  c->verbose = 1;
  parameter("verbose",
            "1: says once where the sums are made, or why not in the network; 2: for each communicator, and "
            "which calls are left to Open MPI; 0: nothing",
            MCA_BASE_VAR_TYPE_INT, &c->verbose);
  c->at_creation = false;
  parameter(
      "join_at_creation",
      "Whether a communicator joins its job when it is created. Otherwise it joins at a blocking collective "
      "that netsum takes, and those before that are left to Open MPI",
      MCA_BASE_VAR_TYPE_BOOL, &c->at_creation);
  c->join_after_calls = 32;
  parameter("join_after_calls",
            "Communicators but MPI_COMM_WORLD, which joins at once, join after so many collectives",
            MCA_BASE_VAR_TYPE_SIZE_T, &c->join_after_calls);
  c->join_after_bytes = 16 << 20;
  parameter("join_after_bytes", "Or at the collective with which they have had so many bytes",
            MCA_BASE_VAR_TYPE_SIZE_T, &c->join_after_bytes);
  c->least_bytes = 0;
  parameter("least_bytes", "Collectives of fewer bytes are left to Open MPI", MCA_BASE_VAR_TYPE_SIZE_T,
            &c->least_bytes);
  c->timeout_s = 0;
  parameter("timeout", "Seconds after which a collective that has not completed fails; 0: 30 days",
            MCA_BASE_VAR_TYPE_DOUBLE, &c->timeout_s);
  return OMPI_SUCCESS;
}

static int init_query(bool enable_progress_threads, bool enable_mpi_threads) {
  (void)enable_progress_threads;
  (void)enable_mpi_threads; /* every level is supported */
  if (!mca_coll_netsum_component.enable) return OMPI_ERR_NOT_AVAILABLE;
  if (netsum_requests_fit()) return OMPI_SUCCESS;
  opal_output(0, "netsum: the component was built for another release of Open MPI 4.1, and is not used");
  return OMPI_ERR_NOT_AVAILABLE;
}

static int close_component(void) {
  netsum_close_all();
  netsum_requests_close();
  return OMPI_SUCCESS;
}
