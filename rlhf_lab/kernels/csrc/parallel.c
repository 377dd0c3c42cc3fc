/* Runs work on PyTorch's own threads: a second thread pool would compete for the cores. */

#include "simd.h"

#define MIN_PARALLEL_WORK 8192 /* elements below which waking a second thread does not pay */

static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_num)(void), (*num_threads)(void);

/* GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the OpenMP library that PyTorch uses. */
void set_openmp_functions(void *parallel, void *number, void *count) {
    gomp_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
    thread_num = (int (*)(void))number;
    num_threads = (int (*)(void))count;
}

typedef struct {
    task_fn task;
    const void *job;
    index_t count;
} parallel_job;

/* The number of threads is read here: OpenMP may start fewer than requested. */
static void run_share(void *data) {
    const parallel_job *p = data;
    index_t thread = thread_num(), threads = num_threads();
    p->task(p->job, p->count * thread / threads, p->count * (thread + 1) / threads, thread);
}

void parallel_for(task_fn task, const void *job, index_t count, index_t cost, index_t threads) {
    index_t team_size = threads < count ? threads : count;
    if (!gomp_parallel || team_size < 2 || count * cost < MIN_PARALLEL_WORK) {
        task(job, 0, count, 0);
        return;
    }
    parallel_job p = {task, job, count};
    gomp_parallel(run_share, &p, (unsigned)team_size, 0);
}
