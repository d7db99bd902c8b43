! Collectives from Fortran, whose wrappers call Open MPI's internals and not the functions of C.
program fortran
  use mpi
  implicit none
  integer, parameter :: count = 1000
  integer :: rank, ranks, ierr, i, wrong, request
  real :: mine(count), all(count), expected
  integer :: numbers(count), parts(2), everyone(64)
  double precision :: wide
  wrong = 0
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  do i = 1, count
    mine(i) = real(mod(i, 100) + rank)
    numbers(i) = i + rank
  end do
  call MPI_Allreduce(mine, all, count, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (ierr /= MPI_SUCCESS) wrong = wrong + 1
  do i = 1, count
    expected = real(mod(i, 100) * ranks + ranks * (ranks - 1) / 2)
    if (all(i) /= expected) wrong = wrong + 1
  end do
  call MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
  do i = 1, count
    if (numbers(i) /= i * ranks + ranks * (ranks - 1) / 2) wrong = wrong + 1
  end do
  all = 0
  call MPI_Iallreduce(mine, all, count, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, request, ierr)
  call MPI_Wait(request, MPI_STATUS_IGNORE, ierr)
  if (all(1) /= real(ranks + ranks * (ranks - 1) / 2)) wrong = wrong + 1
  wide = 1.5d0
  call MPI_Allreduce(MPI_IN_PLACE, wide, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (wide /= 1.5d0 * ranks) wrong = wrong + 1
  call MPI_Reduce(mine, all, count, MPI_REAL, MPI_MAX, ranks - 1, MPI_COMM_WORLD, ierr)
  if (rank == ranks - 1 .and. all(7) /= real(7 + ranks - 1)) wrong = wrong + 1
  if (rank == 1) numbers = 5
  call MPI_Bcast(numbers, count, MPI_INTEGER, 1, MPI_COMM_WORLD, ierr)
  if (any(numbers /= 5)) wrong = wrong + 1
  parts = (/ rank, -rank /)
  call MPI_Allgather(parts, 2, MPI_INTEGER, everyone, 2, MPI_INTEGER, MPI_COMM_WORLD, ierr)
  do i = 1, ranks
    if (everyone(2 * i - 1) /= i - 1 .or. everyone(2 * i) /= 1 - i) wrong = wrong + 1
  end do
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  print '(a, i0, a)', 'Fortran: ', wrong, ' wrong'
  call MPI_Finalize(ierr)
  if (wrong /= 0) stop 1
end program fortran
