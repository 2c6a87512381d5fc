#!/usr/bin/env python3
"""Each check of tidy.py finds a planted breach and accepts the right form."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tidy  # noqa: E402


def breaches(check, *arguments):
    found = []
    check(*arguments, lambda path, line, message: found.append((line, message)))
    return found


class IncludeEdges(unittest.TestCase):
    def test_server_may_not_include_client(self):
        lines = ['#include "client/output/table.h"']
        self.assertEqual(len(breaches(tidy.check_includes, "server/core/a.cc", lines)), 1)

    def test_a_lower_layer_may_not_include_a_higher_one(self):
        lines = ['#include "server/jobs/job_manager.h"']
        self.assertEqual(len(breaches(tidy.check_includes, "server/store/a.cc", lines)), 1)

    def test_allowed_edges_pass(self):
        lines = ['#include "common/base/status.h"', '#include "server/state/job.h"', "#include <vector>"]
        self.assertEqual(breaches(tidy.check_includes, "server/store/a.cc", lines), [])

    def test_worker_may_include_the_protocol_but_the_shim_may_not(self):
        lines = ['#include "sft/v1/job.pb.h"']
        self.assertEqual(breaches(tidy.check_includes, "worker/daemon/a.cc", lines), [])
        self.assertEqual(len(breaches(tidy.check_includes, "worker/shim/a.cc", lines)), 1)


class Banned(unittest.TestCase):
    def test_each_banned_call_is_found(self):
        for line in ["std::this_thread::sleep_for(x);", "auto t = std::chrono::steady_clock::now();",
                     'getenv("HOME")', "absl::Mutex m;", "std::cout << 1;", "auto p = new Thing(1);",
                     "#include <torch/torch.h>", "// TODO: later"]:
            with self.subTest(line=line):
                self.assertEqual(len(breaches(tidy.check_banned, "server/core/a.cc", [line])), 1)

    def test_new_passes_only_where_a_unique_ptr_takes_it(self):
        for line in ["return std::unique_ptr<A>(new A(1));", "std::unique_ptr<A> a(new A(1));"]:
            self.assertEqual(breaches(tidy.check_banned, "server/a.cc", [line]), [])
        self.assertEqual(len(breaches(tidy.check_banned, "server/a.cc", ["Keep(new A(1));"])), 1)

    def test_the_one_allowed_place_passes(self):
        line = ["std::chrono::steady_clock::now()"]
        self.assertEqual(breaches(tidy.check_banned, "common/base/clock.cc", line), [])

    def test_a_word_in_a_comment_is_not_a_call(self):
        self.assertEqual(breaches(tidy.check_banned, "server/a.cc", ["x();  // never getenv() here"]), [])


class Lengths(unittest.TestCase):
    def test_a_long_function_is_found_with_its_name(self):
        text = "namespace a {\nvoid Long(int x) {\n" + "  Call();\n" * 130 + "}\n}\n"
        found, warned = [], []
        tidy.check_lengths("server/a.cc", text.splitlines(), text,
                           lambda p, l, m: found.append(m), lambda p, l, m: warned.append(m))
        self.assertEqual(len(found), 1)
        self.assertIn("void Long", found[0])

    def test_a_long_class_of_short_functions_passes(self):
        text = "class A {\n" + "  void F() {\n    G();\n  }\n" * 60 + "};\n"
        found = []
        tidy.check_lengths("server/a.cc", text.splitlines(), text,
                           lambda p, l, m: found.append(m), lambda p, l, m: None)
        self.assertEqual(found, [])

    def test_braces_in_strings_do_not_count(self):
        text = 'void F() {\n  Print("}}}{{{");\n}\n'
        self.assertEqual([(f, l) for f, l, _ in tidy.functions(text)], [(1, 3)])


class Processes(unittest.TestCase):
    def test_torch_in_the_service_is_found(self):
        self.assertEqual(len(breaches(tidy.check_processes, "server/a.cc", ["#include <ATen/ATen.h>"])), 1)

    def test_protobuf_in_the_engine_is_found(self):
        lines = ['#include "sft/v1/job.pb.h"', "#include <grpcpp/grpcpp.h>"]
        self.assertEqual(len(breaches(tidy.check_processes, "worker/engine/nn/a.cc", lines)), 2)


class Comments(unittest.TestCase):
    def test_an_rpc_without_a_comment_is_found(self):
        lines = ["service S {", "  rpc Get(A) returns (B);", "  // Known.", "  rpc Put(A) returns (B);"]
        self.assertEqual(len(breaches(tidy.check_comments, "proto/sft/v1/a.proto", lines)), 1)

    def test_a_public_class_without_a_comment_is_found(self):
        self.assertEqual(len(breaches(tidy.check_comments, "server/a.h", ["class A {"])), 1)
        self.assertEqual(breaches(tidy.check_comments, "server/a.h", ["// Why.", "class A {"]), [])
        self.assertEqual(breaches(tidy.check_comments, "server/a.h", ["class Declared;"]), [])


class DeadFiles(unittest.TestCase):
    def test_a_source_that_nothing_builds_and_a_header_that_nothing_includes_are_found(self):
        contents = {"server/CMakeLists.txt": "sft_library(s SOURCES a.cc core/c.cc)",
                    "server/a.cc": '#include "server/a.h"\n', "server/a.h": "", "server/b.cc": "",
                    "server/b.h": "", "server/core/c.cc": ""}
        found = []
        tidy.check_dead_files(list(contents), contents, lambda p, l, m: found.append(p))
        self.assertEqual(found, ["server/b.cc", "server/b.h"])


class Text(unittest.TestCase):
    def test_trailing_space_tab_long_line_and_missing_newline_are_found(self):
        text = "#pragma once\nint a; \n\tint b;\n" + "x" * 101
        self.assertEqual(len(breaches(tidy.check_text, "server/a.h", text.splitlines(), text)), 4)


if __name__ == "__main__":
    unittest.main()
