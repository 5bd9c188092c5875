#ifndef GUOZHUANG_TESTS_CASES_H
#define GUOZHUANG_TESTS_CASES_H

/// The cases of guozhuang_c_tests, which all ranks run.
void test_before_init(void);
void test_after_shutdown(void);
void test_at_exit(void);
void test_leave(void);
void test_death(void);
void test_timeout(void);
void test_shrink(void);
void test_session(void);
void test_forked_child(void);
void test_run_ranks(void);
void test_info(void);
void test_results(void);
void test_outputs(void);
void test_in_place(void);
void test_messages(void);
void test_handles(void);
void test_streams(void);
void test_joins(void);
void test_null_arguments(void);
void test_bad_arguments(void);
void test_keep_alive(void);
void test_releases(void);
void test_process_sets(void);
void test_memory(void);
void test_plans(void);
void test_training(void);
void test_failing_batches(void);
void test_helpers(void);

#endif
