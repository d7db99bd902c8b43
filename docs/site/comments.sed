# Comments of the public headers as Doxygen reads them: those before a declaration, those behind one, and the first of a file.
1s|^// |/// \\file\n/// |
1s|^/\* |/** \\file\n * |
s|^\( *\)// |\1/// |
s|^\( *\)//$|\1///|
s|^\( *\)/\* |\1/** |
s|\([^ ] *\)  // |\1  ///< |
# See HIDDEN_NAME in docs/site/conf.py.
s|bool local = |bool local__ = |
