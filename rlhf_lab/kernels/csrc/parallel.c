/* Work shared among PyTorch's own threads: a second pool of them would compete for the cores. */

#include "simd.h"

#define FEW 8192 /* numbers that are not worth waking a second thread for */

static void (*in_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*own_number)(void), (*how_many)(void);

/* GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the OpenMP library that PyTorch runs on. */
void use_threads_of(void *parallel, void *number, void *count) {
    in_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
    own_number = (int (*)(void))number;
    how_many = (int (*)(void))count;
}

typedef struct {
    work run;
    const void *job;
    size count;
} shares;

/* There may be fewer threads than were asked for. */
static void own_share(void *all) {
    const shares *of = all;
    size thread = own_number(), parts = how_many();
    of->run(of->job, of->count * thread / parts, of->count * (thread + 1) / parts, thread);
}

void share(work run, const void *job, size count, size each, size threads) {
    size parts = threads < count ? threads : count;
    if (!in_parallel || parts < 2 || count * each < FEW) {
        run(job, 0, count, 0);
        return;
    }
    shares all = {run, job, count};
    in_parallel(own_share, &all, (unsigned)parts, 0);
}
