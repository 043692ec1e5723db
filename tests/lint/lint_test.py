#!/usr/bin/env python3
"""The checks of tools/ find what they are for."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_floors  # noqa: E402
import check_format  # noqa: E402
import check_mutants  # noqa: E402
import check_names  # noqa: E402
import check_operators  # noqa: E402
import check_paths  # noqa: E402
import check_rooms  # noqa: E402
import check_sizes  # noqa: E402
import check_text  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("CMakeLists.txt", "set(TESSERA_FLOORS\n  base layout  # low\n  comm models cli)\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Floors(Tree):
    def setUp(self):
        super().setUp()
        self.write("tessera/base/CMakeLists.txt", "tessera_floor(NAME base SOURCES a.cpp)")
        self.write("tessera/layout/CMakeLists.txt", "tessera_floor(NAME layout SOURCES a.cpp DEPENDS base)")
        self.write("tessera/comm/CMakeLists.txt", "tessera_floor(NAME comm SOURCES a.cpp\n  DEPENDS layout LIBRARIES fmt)")

    def test_lower_floors_are_free(self):
        self.write("tessera/comm/a.cpp", '#include "tessera/base/a.h"\n#include "tessera/layout/a.h"\n')
        self.write("tessera/models/a.h", "#include <torch/torch.h>\n")
        self.write("tessera/tessera.h", '#include "tessera/models/a.h"\n')
        self.assertEqual(check_floors.check(self.root), [])

    def test_a_higher_floor_is_wrong(self):
        self.write("tessera/layout/a.h", '#include "tessera/comm/a.h"\n')
        self.assertIn("above layout", check_floors.check(self.root)[0])

    def test_an_undeclared_floor_is_wrong(self):
        self.write("tessera/layout/CMakeLists.txt", "tessera_floor(NAME layout SOURCES a.cpp)")
        self.write("tessera/layout/a.h", '#include "tessera/base/a.h"\n')
        self.assertIn("does not declare", check_floors.check(self.root)[0])

    def test_all_of_torch_is_for_models(self):
        self.write("tessera/comm/a.h", "#include <torch/torch.h>\n")
        self.assertIn("ATen/ops", check_floors.check(self.root)[0])

    def test_a_declaration_upwards_is_wrong(self):
        self.write("tessera/base/CMakeLists.txt", "tessera_floor(NAME base SOURCES a.cpp DEPENDS comm)")
        self.assertIn("not below it", check_floors.check(self.root)[0])

    def test_a_folder_that_is_no_floor_is_wrong(self):
        self.write("tessera/helpers/a.h", "")
        self.assertIn("on no floor", check_floors.check(self.root)[0])


class Names(Tree):
    def wrong(self, first, second, floor="base"):
        self.write("tessera/base/a.cpp", f"namespace tessera {{\nnamespace {{\n{first}\n}}  // namespace\nvoid f() {{}}\n}}")
        self.write(f"tessera/{floor}/room/b.cpp", f"namespace tessera {{\nnamespace {{\n{second}\n}}  // namespace\n}}")
        return check_names.check(self.root)

    def test_one_of_a_kind_is_right(self):
        self.assertEqual(self.wrong("int f_of(int x) { if (x) { return g(x); } return 0; }\nconstexpr int kA = int{1} << 20;", "int g_of(int x) { return f_of(x); }\nconstexpr int kB = int{2} << 20;"), [])
        self.assertEqual(self.wrong("int f_of(int x);", "int f_of(int x);", floor="layout"), [])  # another floor
        self.assertEqual(self.wrong("using Rows = std::vector<int>;", "using Rows = std::vector<int>;"), [])

    def test_a_name_in_two_files_is_wrong(self):
        for first, second in (("int f_of(int x) { return x; }", "template <typename T>\nT f_of(const T& x) {\n  return x;\n}"), ("constexpr int f_of{2};", "struct f_of {};"),
                              ("using f_of = int;", "using f_of = long;"), ("struct A {\n  int x() { return 1; }\n};\nint f_of = 2, b = 3;", "enum class f_of { kA };")):
            with self.subTest(first=first, second=second):
                self.assertRegex(" ".join(self.wrong(first, second)), "^f_of stands in tessera/base/a.cpp and in tessera/base/room/b.cpp")


class Rooms(Tree):
    def test_an_order_is_right(self):
        self.write("tessera/base/a.h", "")
        self.write("tessera/base/b.h", '#include "tessera/base/a.h"\n')
        self.write("tessera/base/b.cpp", '#include "tessera/base/b.h"\n#include "tessera/base/a.h"\n')
        self.write("tessera/layout/a.cpp", '#include "tessera/base/b.h"\n')
        self.assertEqual(check_rooms.check(self.root), [])

    def test_a_circle_of_headers_and_sources_is_wrong(self):
        self.write("tessera/base/a.h", "")
        self.write("tessera/base/a.cpp", '#include "tessera/base/a.h"\n#include "tessera/base/c.h"\n')
        self.write("tessera/base/b.h", '#include "tessera/base/a.h"\n')
        self.write("tessera/base/c.h", '#include "tessera/base/b.h"\n')
        self.write("tessera/base/d.cpp", '#include "tessera/base/c.h"\n')
        wrong = check_rooms.check(self.root)
        self.assertEqual(len(wrong), 1)
        self.assertIn("3 of base need each other: a, b, c", wrong[0])
        self.assertIn("base/a -> base/c", wrong[0])

    def test_a_room_behind_its_own_is_wrong(self):
        self.write("tessera/base/CMakeLists.txt", "tessera_floor(NAME base\n  ROOMS low high\n  SOURCES a.cpp)")
        self.write("tessera/base/a.h", "")
        self.write("tessera/base/high/a.h", '#include "tessera/base/low/a.h"\n#include "tessera/base/a.h"\n')
        self.write("tessera/base/low/a.h", "")
        self.assertEqual(check_rooms.check(self.root), [])
        self.write("tessera/base/low/b.cpp", '#include "tessera/base/high/a.h"\n')
        self.assertEqual(check_rooms.check(self.root), ["base/low/b includes base/high/a, from a room behind its own"])
        self.write("tessera/base/other/a.h", "")
        self.assertIn("is not among the ROOMS", check_rooms.check(self.root)[0])


class Sizes(Tree):
    def functions(self, text):
        return [(name, last - first + 1) for name, first, last in check_sizes.cpp_functions(text)]

    def test_functions_are_found_and_measured(self):
        text = """namespace a {
        struct S { S(int x) : x_{x} {
            if (x) { x_ = 1; }
          }
          int get() const { return x_; }
          int x_ = 0;
        };
        template <class T>
        T twice(T x) {
          auto f = [](T y) { return y; };
          return f(x) + f(x);
        }
        const int kTable[] = {1, 2};
        #define BRACES ) { \\
          {
        TEST(Suite, Name) {
          EXPECT_EQ("}", '}');  // }
        }
        }"""
        self.assertEqual(self.functions(text), [("S", 3), ("get", 1), ("twice", 5), ("TEST", 3)])

    def test_long_ones_are_reported(self):
        self.write("tessera/base/a.h", "\n" * 401)
        self.write("tessera/base/b.cpp", "void f() {\n" + "  g();\n" * 60 + "}\n")
        self.write("tests/unit/base/c.cpp", "\n" * 900)
        wrong, ask = check_sizes.check(self.root)
        self.assertEqual(len(wrong), 1)
        self.assertIn("a.h: a header of 401 lines", wrong[0])
        self.assertIn("b.cpp:1 f: a function of 62 lines", ask[0])
        self.assertIn("c.cpp: a test of 900 lines", ask[1])


class Paths(Tree):
    def test_a_home_is_found(self):
        self.write("docs/a.md", "see https://example.com/home/x and build/work/a\nread " + "/home" + "/someone/a.txt\n")
        self.assertEqual([line.split(": ")[0] for line in check_paths.check(self.root)], ["docs/a.md:2"])


class Format(Tree):
    @unittest.skipUnless(check_format.program(check_format.ROOT), "the clang-format of requirements.txt is not here")
    def test_a_file_that_is_formatted_otherwise_is_wrong(self):
        self.write(".clang-format", (check_format.ROOT / ".clang-format").read_text())
        self.write("tessera/base/a.cpp", "int a() { return 1; }\n")
        self.write("tessera/base/b.cpp", "int b(bool x) { if (x) return 1;\n  return 2; }\n")
        found = check_format.check(self.root, check_format.program(check_format.ROOT))
        self.assertEqual([line.split(":")[0] for line in found], ["tessera/base/b.cpp"])


class Mutants(Tree):
    ROW = "tessera/{0}/a.cpp: the end is lost\n- return end{0};\n+ return begin;\nfound by: {0} Suite.{1}\n"

    def setUp(self):
        super().setUp()
        self.write("tests/unit/a_test.cpp", "TEST(Suite, Name) {\n}\n")
        self.floors = ["base", "layout", "comm", "models", "cli"]
        for floor in self.floors:
            self.write(f"tessera/{floor}/a.cpp", f"int f() {{\n  return end{floor};\n}}\n")
            self.write(f"tools/mutants/{floor}.txt", self.ROW.format(floor, "Name"))

    def test_a_list_that_fits(self):
        self.assertEqual(check_mutants.check(self.root), [])
        faults = check_mutants.read_all(self.root)
        self.assertEqual([fault.floor for fault in faults], self.floors)
        self.assertEqual(faults[0].planted("  return endbase;\n"), "  return begin;\n")
        self.assertEqual(faults[0].found_by, [("base", "Suite.Name")])

    def test_a_line_that_is_gone_or_there_twice(self):
        self.write("tessera/base/a.cpp", "")
        self.write("tessera/comm/a.cpp", "return endcomm;\n  return endcomm;\n")
        wrong = check_mutants.check(self.root)
        self.assertEqual([line.split(": ")[0] for line in wrong], ["tessera/base/a.cpp", "tessera/comm/a.cpp"])

    def test_a_test_that_is_gone(self):
        self.write("tools/mutants/base.txt", self.ROW.format("base", "Other"))
        self.assertIn("there is no test Suite.Other", check_mutants.check(self.root)[0])
        self.write("tools/mutants/base.txt", self.ROW.format("base", "N*"))
        self.assertEqual(check_mutants.check(self.root), [])

    def test_a_floor_without_faults_and_a_fault_without_tests(self):
        self.write("tools/mutants/base.txt", "# nothing\n")
        self.write("tools/mutants/cli.txt", self.ROW.format("cli", "Name").rsplit("found by", 1)[0])
        wrong = check_mutants.check(self.root)
        self.assertIn("give it `found by` or `equivalent`", wrong[0])
        self.assertIn("no fault of the floor base", wrong[1])


class Operators(Tree):
    LISTED = "# names\naten::mul.Tensor  tessera/layout/a.cpp  a reason\n"

    def setUp(self):
        super().setUp()
        self.write("tessera/rules/families/a.cpp", 'table.add("aten::mul.Tensor", {});\ntable.add("aten::gru.data", {});\n')
        self.write("tessera/layout/a.cpp", 'bool f(const std::string& op) { return op == "aten::mul.Tensor"; }\n')
        self.write(check_operators.LIST, self.LISTED)

    def test_a_list_that_fits(self):
        self.assertEqual(check_operators.check(self.root), [])

    def test_a_planted_name_is_wrong(self):
        for line in ('op == "aten::add"', 'name.starts_with("aten::empty")', 'library.impl("add.Tensor", f);', '{"gru.data", {"sizes"}}',
                     'find("tessera::contract")'):
            self.write("tessera/layout/b.h", line + "\n")
            wrong = check_operators.check(self.root)
            self.assertEqual(len(wrong), 1, line)
            self.assertIn("tessera/layout/b.h names ", wrong[0])

    def test_own_schemas_and_other_texts_are_free(self):
        self.write("tessera/layout/b.cpp", '''// "aten::add"
TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def("own(Tensor x) -> Tensor");
  m.impl("own", f);
}
const auto text = "aten::", more = "tessera::nn::RMSNorm(", file = "a.json";
''')
        self.assertEqual(check_operators.check(self.root), [])

    def test_the_list_only_shrinks(self):
        self.write("tessera/layout/a.cpp", "")
        self.assertIn("take the row off", check_operators.check(self.root)[0])
        check_operators.shrink(self.root)
        self.assertEqual((self.root / check_operators.LIST).read_text(), "# names\n")
        self.assertEqual(check_operators.check(self.root), [])

    def test_a_row_gives_its_reason(self):
        self.write(check_operators.LIST, self.LISTED.replace("a reason", ""))
        self.assertIn("has no reason", check_operators.check(self.root)[0])


class Text(unittest.TestCase):
    def test_a_cut_text_is_found(self):
        text = (Path(__file__).resolve().parents[2] / "examples/data/kjv.txt").read_text()
        self.assertEqual(check_text.check(text), [])
        self.assertEqual(check_text.check(text[:-100]), ["31101 verses instead of 31102"])


if __name__ == "__main__":
    unittest.main()
