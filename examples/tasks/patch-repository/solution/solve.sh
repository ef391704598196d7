set -eu
cp -r textstats /tmp/before
python3 - <<'PYTHON'
path = "textstats/words.py"
text = open(path, encoding="utf-8").read()
text = text.replace("    return max(words(text), key=len)\n", '    return max(re.findall(r"\\w+", text), key=len, default="")\n')
text = text.replace('"""Figures about the words of a text."""\n', '"""Figures about the words of a text."""\n\nimport re\n')
open(path, "w", encoding="utf-8").write(text)
PYTHON
./run-tests.sh
mkdir -p outputs
diff -u --label a/textstats/words.py --label b/textstats/words.py /tmp/before/words.py textstats/words.py >outputs/fix.patch || test $? -eq 1
